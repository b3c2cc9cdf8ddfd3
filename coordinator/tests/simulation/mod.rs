//! The coordinator without a runtime, for simulations: no thread, no socket, no clock.

mod fuzzed_router;
#[cfg(feature = "oidc")]
mod fuzzed_tokens;
mod seen;
mod simulated_coordinator;
#[cfg(feature = "cluster")]
mod simulated_member;

pub use fuzzed_router::{Answered, Asked, FuzzedRouter, mistake_in_roles};
#[cfg(feature = "oidc")]
pub use fuzzed_tokens::FuzzedTokens;
pub use seen::{Action, Capture, Held, Incident, RankSeen, Step};
pub use simulated_coordinator::{Now, Receipt, SimulatedCoordinator};
#[cfg(feature = "cluster")]
pub use simulated_member::{SimulatedMember, SimulatedOwnership, SimulatedProof};
