"""Why a function of the user's, which a setting or a checkpoint names, is not called, or failed."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

RAISED = Entry(
    "user_code.raised",
    "{error}",
    cause="The function raised this error.",
    remedy="Correct what the error names; the function must run alone in Python.",
)
NO_FILE = Entry(
    "user_code.no_file",
    "there is no file {path}",
    cause="The path is wrong, or relative to another folder: relative paths of a job file, as "
    "those of options, begin at the working directory of the command, not at the job file.",
    remedy="State the full path, or start the command in the folder that the path begins at.",
)
FORM = Entry("user_code.form", 'write "file.py:function" or "package.module:function"')
OF_A_CHECKPOINT = Entry(
    "user_code.of_a_checkpoint",
    "is code that the checkpoint names, and no job file here states it: it is run where --run "
    "names a run directory whose job file states the same, or with --run-code, for a checkpoint of "
    "your own",
    cause="Whoever can change a checkpoint could run any program by it.",
    remedy="Give `--run` with the run directory of this job, or `--run-code` if the checkpoint is "
    "your own.",
)
OF_ANOTHER_USER = Entry(
    "user_code.of_another_user",
    "is code that {owner} names, whose run directory this is; it is not run as {user}: load it as "
    "that user, or load a checkpoint of the run",
)
ENDED_AT_IMPORT = Entry(
    "user_code.ended_at_import",
    "ended with {status} when it was imported: put what it runs as a program behind "
    'if __name__ == "__main__"',
)
NOT_CALLABLE = Entry(
    "user_code.not_callable",
    "is not a function",
    cause="The name is of something else than a function.",
    remedy='Name a function, as "file.py:function".',
)
NAME_MISSING = Entry(
    "user_code.name_missing",
    "{file} has no {name}; it has {names}",
    cause="The name behind the colon is misspelt.",
    remedy='Name one of those, as "file.py:function".',
)
NO_FUNCTION = Entry("user_code.no_function", "no function")
NOT_RETURNED = Entry(
    "user_code.not_returned",
    "did not return within {seconds:g} s: the machine is very busy, or what its file does when it "
    'is imported (waiting for other ranks, training) belongs behind if __name__ == "__main__"',
)
ENDED_THE_TRIAL = Entry(
    "user_code.ended_the_trial",
    "ended the program that tried it: {error}",
    cause="What the file does when it is imported ended the process.",
    remedy='Put what trains behind `if __name__ == "__main__"`.',
)
EXIT_STATUS = Entry("user_code.exit_status", "exit status {status}")
ENDED_SILENTLY = Entry(
    "user_code.ended_silently",
    "ended with exit status {status} and printed no error",
    cause="The process that tried the function ended without an error of Python's, as by a crash "
    "or for memory.",
    remedy="Run the function alone in Python; `dmesg` shows whether the kernel ended it.",
)
TOOK_TOO_LONG = Entry(
    "user_code.took_too_long",
    "took over {seconds:g} s",
    cause="The file trains, downloads or waits for ranks when it is imported or called.",
    remedy='Put that behind `if __name__ == "__main__"`.',
)
MODEL_NOT_A_MODULE = Entry(
    "user_code.model_not_a_module",
    "returned a {type}: it must return the torch module that the script trains",
)
OPTIMIZER_RETURNED = Entry(
    "user_code.optimizer_returned",
    "returned {found}: it must return the optimizer, or (optimizer, scheduler); of several a list "
    "or a dictionary of them, alone or as (optimizers, schedulers)",
)
IN_TWO_OPTIMIZERS = Entry(
    "user_code.in_two_optimizers",
    "is in two of its optimizers: no replica can follow both",
    cause="Two optimizers step one parameter.",
    remedy="Give each parameter to one optimizer in the factory.",
)
OTHER_TENSORS = Entry(
    "user_code.other_tensors",
    "its optimizer holds tensors that are not those it was given",
    cause="The factory made an optimizer of other tensors than it got.",
    remedy="Make it of the parameters that the factory is called with.",
)
UNSEEDED_STEP = Entry(
    "user_code.unseeded_step",
    "its optimizer's step gives other bits each time: what is random in it (stochastic rounding) "
    "must be seeded from its state (a step it counts there), or no replica can follow it",
)
HIDDEN_STATE = Entry(
    "user_code.hidden_state",
    "its optimizer depends on something outside of its state (a generator, a count): begun anew "
    "with the same state its step gives other bits, as the trainer's own would after a restart",
    cause="A restored trainer would go on otherwise, too: its optimizer state does not say all.",
    remedy="Keep that in the optimizer's state_dict, or do not restore from steps of this job.",
)
UNSEEDED_ROUNDING = Entry(
    "user_code.unseeded_rounding",
    "gave other bits for the same master, step and name: what is random in it must be seeded from "
    "its arguments, or no replica can follow it",
)
ROUNDED_OTHERWISE = Entry(
    "user_code.rounded_otherwise",
    "gave {found}, the parameter is {dtype} [{shape}]",
    cause="The `rounding` function returned another type or shape.",
    remedy="Return a tensor of the parameter's type and shape.",
)
TENSOR_SHAPE = Entry("user_code.tensor_shape", "{dtype} [{shape}]")
FACTOR_NOT_CALLABLE = Entry(
    "user_code.factor_not_callable",
    "returned {found}, not a function",
    cause="The function that `schedule` names must return the factor's function.",
    remedy="Return a function of the step.",
)
"""Of a factory of LambdaLR's functions."""
RATE_NOT_FINITE = Entry(
    "user_code.rate_not_finite", "gave {value} at {at}: it must be a finite number"
)
