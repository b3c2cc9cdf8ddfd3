//! Labelled scenarios of GPU memory in distributed training, and what a detector finds in them.
pub mod actors;
pub mod allocator;
pub mod arrival;
pub mod code;
pub mod families;
pub mod job;
pub mod judge;
pub mod product;
pub mod recorded;
pub mod rng;
pub mod runner;
pub mod scenario;
pub mod world;
