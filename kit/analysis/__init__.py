"""Pure analysis: records in, numbers with units and doubts out. Knows nothing of where files lie."""
