"""The trainer's checkpoint against the replica and the job file: tensors bit for bit,"""
