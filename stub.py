import sys,types,time
b=time.process_time()
which=sys.argv[1:]
for w in which: sys.modules[w]=types.ModuleType(w)
import torch
print(which, round(time.process_time()-b,2), len(sys.modules))
