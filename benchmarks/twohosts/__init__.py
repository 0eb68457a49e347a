"""Two hosts for real: the programs over a rate-limited, delayed link between two namespaces."""
