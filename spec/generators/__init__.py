"""Writers of the generated parts of the specification."""
