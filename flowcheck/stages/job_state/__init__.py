"""What is known of the job that is followed: incarnation, layout, assumptions."""
