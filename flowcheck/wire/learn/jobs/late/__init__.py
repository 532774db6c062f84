"""A job whose start nobody saw: joined where its iterations begin."""
