"""Steps that are cut into k data blocks and m parities on several stores."""
