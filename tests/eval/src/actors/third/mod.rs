//! The third set of families that was kept apart, and was opened when its total had been read.
//! They were written from threads of people who train, and from what is published about how they
//! train, without a look at the detector.

mod faulty;
mod healthy;

pub use faulty::FAULTY;
pub use healthy::HEALTHY;
