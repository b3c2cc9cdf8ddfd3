//! Names the line of code that keeps the memory, and says what kind of trouble it is.
//!
//! [`evidence`] puts the states of all ranks at one step into figures, each once, whether a
//! capture, a tape or a file of PyTorch holds them. Every class of trouble has a judge
//! ([`judges`]): what it needs, what excludes it, what only supports it. The first that holds is
//! the answer; the others stay in the list with their sentences. [`answer`] says it: what to do,
//! whether a restart helps, how sure it is and whether it pages. [`files`] finds what is wrong in
//! states that no detector has watched.
//!
//! It restarts nothing and reads no tape. What snapshots do not hold comes in as
//! [`Context`], in which everything may be unknown.

mod answer;
mod class;
mod constants;
pub mod evidence;
pub mod files;
mod judges;
#[cfg(test)]
mod tests;
mod words;

pub use crate::detector::StepNeed;
pub use crate::snapshot::frames::{is_user_frame, telling_frame};
pub use answer::aftermath::Aftermath;
pub use answer::diagnose::diagnose;
pub use answer::diagnosis::{Diagnosis, Suspect};
pub(crate) use answer::failure::{SIGKILL, ended};
pub use answer::restart::Restart;
pub(crate) use answer::sentence::alike;
pub use answer::sentence::{Parts, first_sentence};
pub use class::Class;
pub use constants::{BUCKETS_MAX, EXPLAINED_PPM_MIN, GENERATIONS_MIN, OCCASIONS_MIN, SUSPECTS_MAX};
pub use evidence::births::{AgeProfile, Bucket, Generations};
pub use evidence::churn::Churn;
pub use evidence::context::{
    Activity, Context, Fate, KnownGrowth, LevelLine, Neighbours, Peaks, Readings, TraceGrowth,
};
pub use evidence::inquiry::Inquiry;
pub use judges::Alternative;
pub use judges::facts::{RestartAnswer, Standing};
pub use judges::remedy::{Cause, Remedy};
pub use words::{about, about_plural, bytes, duration, location, percent, plural, signed_bytes};
pub(crate) use words::{about_span, count};
