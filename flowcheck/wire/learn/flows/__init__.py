"""From messages to sends: what each flow is for, and the rings that flows form."""
