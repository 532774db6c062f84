"""What each kind of trainer sends next: programs, which yield what they expect and are told what
was seen."""
