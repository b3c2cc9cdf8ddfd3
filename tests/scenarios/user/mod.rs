//! What a person meets on the command line.

// PyTorch's own snapshots are judged, with no service.
mod analyze;

// The end of `memtape run` says what was recorded.
mod at_terminal;

// A mistake is answered with one line.
mod bad_input;

// The demo, which a newcomer runs first.
mod demo;

// The exported pickle equals PyTorch's own snapshot.
mod exported;

// The tables of a store answer questions about many jobs.
pub(crate) mod fleet;

// A hint is applied at the next start, and proven.
mod hints;

// The log of a coordinator says what it may do.
mod policy;

// The quick starts do what their pages say.
mod quick_starts;

// The exported pickle opens in PyTorch's own viewer.
mod viz;

// `pip install` of the wheel is all it takes.
mod wheel;
