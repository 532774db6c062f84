"""Why a function of the user's, which a setting or a checkpoint names, is not called, or failed."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

RAISED = Entry(
    "user_code.raised",
    "{error}{place}",
    remedy="Correct what the error names; the code must run alone in Python.",
)
"""place: in which file; null: not known, or the error says it."""
RAISED_IN_FILE = Entry("user_code.raised_in_file", ", raised in {file}, line {line}")
NOT_A_PY_FILE = Entry(
    "user_code.not_a_py_file",
    "{file} is not a .py file",
    remedy="Name the script and the function in it, `train.py:make_model`, or a module that Python "
    "can import, `package.module:make_model`.",
)
NO_FILE = Entry(
    "user_code.no_file",
    "there is no file {path}",
    cause="The path is wrong, or relative to another folder: relative paths of a job file, as "
    "those of options, begin at the working directory of the command, not at the job file.",
    remedy="State the full path, or start the command in the folder that the path begins at.",
)
FORM = Entry(
    "user_code.form",
    "does not name a function",
    remedy='Write the file and the function behind a colon: "file.py:function" or '
    '"package.module:function".',
)
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
    "is code that {owner} names, whose run directory this is; it is not run as {user}",
    remedy="Load it as that user, or load a checkpoint of the run.",
)
ENDED_AT_IMPORT = Entry(
    "user_code.ended_at_import",
    "ended with {status} when it was imported",
    remedy='Put what it runs as a program behind `if __name__ == "__main__"`.',
)
NOT_CALLABLE = Entry(
    "user_code.not_callable",
    "is not a function",
    remedy='Name a function, as "file.py:function".',
)
NAME_MISSING = Entry(
    "user_code.name_missing",
    "{file} has no {name}; it has {names}",
    remedy="Correct the name behind the colon, or write that function.",
)
NO_FUNCTION = Entry(
    "user_code.no_function",
    "no function",
    remedy="Name the function behind the colon.",
)
NOT_RETURNED = Entry(
    "user_code.not_returned",
    "did not return within {seconds:g} s",
    cause="The machine is very busy, or the file does that when it is imported.",
    remedy='Put what waits for other ranks or trains behind `if __name__ == "__main__"`; or try '
    "again when the machine is less busy.",
)
ENDED_THE_TRIAL = Entry(
    "user_code.ended_the_trial",
    "ended the program that tried it: {error}",
    remedy='Put what trains behind `if __name__ == "__main__"`.',
)
EXIT_STATUS = Entry("user_code.exit_status", "exit status {status}")
ENDED_SILENTLY = Entry(
    "user_code.ended_silently",
    "ended with exit status {status} and printed no error",
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
    "returned a {type}, not a torch module",
    remedy="Name a function that returns the torch module that the script trains.",
)
OPTIMIZER_RETURNED = Entry(
    "user_code.optimizer_returned",
    "returned {found}, not an optimizer",
    remedy="Return the optimizer, or (optimizer, scheduler); of several a list or a dictionary "
    "of them, alone or as (optimizers, schedulers).",
)
IN_TWO_OPTIMIZERS = Entry(
    "user_code.in_two_optimizers",
    "is in two of its optimizers: no replica can follow both",
    remedy="Give each parameter to one optimizer in the factory.",
)
OTHER_TENSORS = Entry(
    "user_code.other_tensors",
    "its optimizer holds tensors that are not those it was given",
    remedy="Make it of the parameters that the factory is called with.",
)
UNSEEDED_STEP = Entry(
    "user_code.unseeded_step",
    "its optimizer's step gives other bits each time: no replica can follow it",
    remedy="Seed what is random in it (stochastic rounding) from its state, such as a step it "
    "counts there.",
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
    "gave other bits for the same master, step and name: no replica can follow it",
    remedy="Seed what is random in it from its arguments.",
)
ROUNDED_OTHERWISE = Entry(
    "user_code.rounded_otherwise",
    "gave {found}, the parameter is {dtype} [{shape}]",
    remedy="Return a tensor of the parameter's type and shape.",
)
TENSOR_SHAPE = Entry("user_code.tensor_shape", "{dtype} [{shape}]")
FACTOR_NOT_CALLABLE = Entry(
    "user_code.factor_not_callable",
    "returned {found}, not a function",
    remedy="Return a function of the step.",
)
"""Of a factory of LambdaLR's functions."""
RATE_NOT_FINITE = Entry(
    "user_code.rate_not_finite",
    "gave {value} at {at}: it must be a finite number",
    remedy="Correct the function that gives it; the job file's value is that of the trainer's "
    "script.",
)
