//! All scenarios. Each module is one promise of the product.

mod equals_pytorch; // the tape says what PyTorch's own counters say, at every step
mod killed; // a killed rank leaves its last state behind
