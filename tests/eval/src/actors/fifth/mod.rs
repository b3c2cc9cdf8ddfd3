//! The fifth set of families that was kept apart, and was opened when its total had been read.
//! They were written from threads of people who train, without knowledge of the detector or the
//! diagnosis.

mod faulty;
mod healthy;

pub use faulty::FAULTY;
pub use healthy::HEALTHY;

use crate::actors::draws::{bytes_of, one_node, roomy_host};
