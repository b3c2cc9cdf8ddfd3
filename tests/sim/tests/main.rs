//! Simulations on every change, in one program: each links a whole coordinator.

mod acts;
mod coordinators;
mod fuzzed;
mod seeds;
