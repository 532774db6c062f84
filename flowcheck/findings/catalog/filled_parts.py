"""What `flowcheck restore --template` puts into a trainer's file, and what it leaves there."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

PARAMETERS = Entry("filled.parameters", "{count} parameters")
OPTIMIZER_STATE = Entry("filled.optimizer_state", "optimizer state ({states}), learning rate")
NO_STATES = Entry("filled.no_states", "none")
BUFFERS = Entry("filled.buffers", "{count} buffers of the model")
SCHEDULER = Entry("filled.scheduler", "a learning-rate scheduler")
LOSS_SCALE = Entry("filled.loss_scale", "the loss scale")
MASTERS = Entry("filled.masters", "masters")
AVERAGES = Entry("filled.averages", "moving averages")
COUNTER = Entry("filled.counter", "{name} = {value}")

OTHER_COUNTER = Entry("unfilled.counter", "{name} = {value} (not the step {step})")
COUNTER_LEFT = Entry("unfilled.counter_of_template", "{name} = {value}")
OPTIMIZER_LEFT = Entry(
    "unfilled.optimizer_state", "optimizer state and learning rate, of step {step}"
)
SCHEDULER_LEFT = Entry("unfilled.scheduler", "a learning-rate scheduler, of step {step}")
KEY_LEFT = Entry("unfilled.key", "{key}")
