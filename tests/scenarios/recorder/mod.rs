//! What the recorder promises to the program that it runs in, and to those who read its tape.

// Saves, loads and evaluations are marked, and said with what grows at each.
mod activities;

// Gradients have the line of their forward pass.
mod backward;

// The tape says how far each rank has come in its collectives.
mod collective;

// Memory that is taken from the driver, past every other hook, is on the tape.
mod cupti;

// The tape agrees with PyTorch's own counters at every step.
mod equals_pytorch;

// With the allocator's trace, an export equals PyTorch's own snapshot, event by event.
mod exact;

// The host memory of a rank is reported, workers included.
mod host_side;

// Memory outside PyTorch's allocator is on the tape too, and the ledger adds up.
mod memory;

// The recorder changes nothing that its program can see.
mod non_interference;

// Remedies are carried out at exactly their step, and only where the job offers them.
mod remedies;

// Stacks equal Python's own, on every version of CPython.
mod pythons;
