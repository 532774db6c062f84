"""One optimizer step over the flat state: in FlowCheck's C kernel if the optimizer allows it, else
in torch."""
