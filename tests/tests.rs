//! All scenarios. Each module is one promise of the product.

// What goes wrong says so in one line and disturbs nobody.
mod bad_input;

// A killed rank is on its tape and in the capture.
mod dead_rank;

// No capture runs code in a training process.
mod disturbance;

// What a newcomer runs first.
mod demo;

// A leaking DDP rank ends in one incident that names the line.
mod end_to_end;

// Faults of real programs are found, and benign habits are left alone.
mod real_programs;

// The tape says what PyTorch's own counters say, at every step.
mod equals_pytorch;

// With the allocator's trace, what is exported is PyTorch's own snapshot, event by event.
mod exact;

// The exported pickle is PyTorch's own snapshot.
mod exported;

// A writer killed at any instant leaves a tape that is never wrong.
mod killed;

// The same a thousand times, with everything a lane can hold.
mod killed_lane;

// A coordinator's folder can be checked and its index made anew.
mod stored;

// The recorder changes nothing for its host.
mod non_interference;

// What PyTorch's allocator does not report is on the tape too, and the ledger adds up.
mod memory;

// What a rank takes of its host is told, its workers included.
mod host_side;

// Memory that is taken from the driver, past every other hook.
mod cupti;

// PyTorch's own snapshots are judged, with no service.
mod analyze;

// Captures finish with stopped, killed and unreachable ranks.
mod partition;

// How far each rank has come in its collectives.
mod collective;

// Gradients have the line of the forward pass.
mod backward;

// Stacks are Python's own, on every version of CPython.
mod pythons;

// `pip install` of the wheel is all it takes.
mod wheel;

// The exported pickle opens in PyTorch's own viewer.
mod viz;
