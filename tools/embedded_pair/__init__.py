"""Train the embedded model pair (a deep, thin target and a one-layer drafter) from nothing.

Run from the repository root: ``python -m tools.embedded_pair --minutes 45 --seed 7``.

corpus     the Python standard library as documents, split into training and held-out files
vocabulary byte-level BPE trained on the same text
shapes     the two architectures, growth in depth, export to transformers folders
optimiser  Muon for matrices, AdamW for the rest, one wall-clock schedule
phases     shallow training, deep training, drafter warm-up, distillation
measure    held-out loss, expected acceptance, end-token handling, cost of a forward pass
card       the model card, written from the measured report
"""
