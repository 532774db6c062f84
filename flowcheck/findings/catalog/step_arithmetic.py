"""What a computed step rests on: whose rounding it has, why the C kernel does not take it, and the
loss scale."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

SQUARE_ROOTS = Entry(
    "arithmetic.square_roots",
    "square roots on the trainers' CPUs are rounded as on this one: torch's library rounds them "
    "otherwise on CPUs of another maker, and on Intel's with AVX-512",
    until_audit=True,
    remedy="Run `flowcheck audit FILE{this_run!o}` once, with a checkpoint of the trainer.",
)
CPU_FOR_GPU = Entry(
    "arithmetic.cpu_for_gpu",
    "the trainer's optimizer runs on a GPU, and the replica applies its steps with torch's CPU "
    "kernels: the last bits may differ, more with every step ({why})",
    until_audit=True,
    remedy="Run `flowcheck audit FILE{this_run!o}` from time to time, and `flowcheck base "
    "FILE{this_run!o}` where it finds a difference.",
)
GPU_KERNELS = Entry(
    "arithmetic.gpu_kernels",
    "the trainer's GPU rounds as torch's kernels for {kernels} do; their operations were read "
    "from the wheels of torch {releases}, and not measured on a GPU",
    until_audit=True,
)
GPU_KERNELS_MEASURED = Entry(
    "arithmetic.gpu_kernels_measured",
    "the trainer's GPU rounds as torch's kernels for {kernels} do; their operations were read "
    "from the wheels of torch {releases}, and measured on one {gpu} with torch {torch}: steps "
    "had the same bits there",
    until_audit=True,
)
GPU_POWERS = Entry(
    "arithmetic.gpu_powers",
    "CUDA's powf rounds beta ** step correctly; where it does not (about one step in 16 at "
    "0.999), that step is one unit in the last place off. FlowCheck has CUDA's own powers for "
    "the usual betas, and not for these",
    until_audit=True,
)
GPU_NORM = Entry(
    "arithmetic.gpu_norm",
    "the norm over several rings that gradients are clipped by is summed in the GPU's own order: "
    "its last bit, and with it the last bit of every gradient of a clipped step, may differ",
    until_audit=True,
)
GPU_NORM_ORDER = Entry(
    "arithmetic.gpu_norm_order",
    "the norm that gradients are clipped by is summed in the order of torch's CUDA kernels, as "
    "it was measured on one {gpu} with torch {torch}; gradients have memory of their own there, "
    "without gradient_as_bucket_view",
    until_audit=True,
)
GPU_NORM_ALONE = Entry(
    "arithmetic.gpu_norm_alone",
    "the norm of each tensor (clip_foreach = false) is summed in the order of torch's CUDA "
    "kernels, as it was measured on one {gpu} with torch {torch}; gradients have memory of their "
    "own there, without gradient_as_bucket_view, and the GPU has {processors} multiprocessors",
    until_audit=True,
)

# Why torch applies the steps and not the C kernel.

NO_KERNEL = Entry("arithmetic.no_kernel", "{optimizer} has no C kernel")
PARAMETER_DTYPE = Entry("arithmetic.parameter_dtype", "parameters are {dtype}, not float32")
OTHER_ARITHMETIC = Entry(
    "arithmetic.other_arithmetic", "{setting} = True computes in another way than the C kernel"
)
TENSOR_SETTING = Entry("arithmetic.tensor_setting", "a setting of a parameter group is a tensor")
NO_FUSED_MULTIPLY_ADD = Entry(
    "arithmetic.no_fused_multiply_add", "torch runs without fused multiply-add on this CPU"
)
UNKNOWN_ROOT = Entry(
    "arithmetic.unknown_root",
    "the C kernel has no square root that rounds as torch's does on this CPU",
)
NO_FIRST_BETA = Entry(
    "arithmetic.no_first_beta",
    "with a first beta of 0 the sign of a zero depends on where torch's vectors end",
)
NO_SECOND_BETA = Entry(
    "arithmetic.no_second_beta", "with a second beta of 0 releases of torch compute differently"
)
FUSED_SGD_ADDS_OTHERWISE = Entry(
    "arithmetic.fused_sgd_adds_otherwise",
    "with maximize the fused kernel of SGD with momentum adds in another order for some tensors",
)
FUSED_ADAM_MAXIMIZES = Entry(
    "arithmetic.fused_adam_maximizes",
    "with both weight decay and maximize the fused kernel of Adam rounds otherwise",
)
MIXED_IMPLEMENTATIONS = Entry(
    "arithmetic.mixed_implementations", "parameter groups have different implementations"
)
NO_OPTIMIZER = Entry("arithmetic.no_optimizer", "the job has no optimizer")
SEVERAL_OPTIMIZERS = Entry("arithmetic.several_optimizers", "the job has several optimizers")
OTHER_CLIPPING = Entry(
    "arithmetic.other_clipping",
    "gradients are clipped by value or by a norm other than the 2-norm, or have a loss scale",
)
MORE_THAN_THE_RULE = Entry(
    "arithmetic.more_than_the_rule",
    "steps have master weights, an average of the weights or clip_error_if_nonfinite",
)
DIFFERENT_STATES = Entry(
    "arithmetic.different_states", "parameters have different optimizer states, or none"
)

# The loss scale.

LOSS_SCALE = Entry(
    "loss_scale.as_stated",
    "the loss scale is the stated one: the gradients of another scale would look the same",
    until_audit=True,
)
LOSS_SCALE_COUNTED = Entry(
    "loss_scale.as_stated_counted",
    "the loss scale is the stated one: the gradients of another scale would look the same "
    "({changes})",
    until_audit=True,
)
SCALE_CHANGES = Entry(
    "loss_scale.changes",
    "of {predicted} changes of scale that its rule predicts, {shown} show in the gradients, "
    "{missing} do not, {unclear} cannot be told; the gradients show {unpredicted} more that it "
    "does not predict",
)
