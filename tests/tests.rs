//! All scenarios. Each module is one promise of the product.

mod bad_input;
mod dead_rank; // a killed rank is on its tape and in the capture
mod demo; // what a newcomer runs first
mod end_to_end; // a leaking DDP rank ends in one incident that names the line
mod equals_pytorch; // the tape says what PyTorch's own counters say, at every step
mod exported; // the exported pickle is PyTorch's own snapshot
mod guest; // the recorder changes nothing for its host
mod killed; // PyTorch's counters are the tape's, at every step
mod tidy; // the rules of the repository
