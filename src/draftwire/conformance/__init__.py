"""What ``draftwire conform`` checks: this implementation against vectors that it did not make."""
