//! Faulty jobs of the fifth set, each with its label.

mod outside;
mod tensors;

use crate::actors::faults::Trouble;

/// All of them, by name.
pub const FAULTY: [(&str, Trouble); 15] = [
    ("cycled_loader", tensors::cycled_loader),
    ("boundary_hooks", tensors::boundary_hooks),
    ("balancing_losses", tensors::balancing_losses),
    ("logged_gradients", tensors::logged_gradients),
    ("no_grad_hooks", tensors::no_grad_hooks),
    ("error_feedback", tensors::error_feedback),
    ("lengthening_shard", tensors::lengthening_shard),
    ("index_appends", outside::index_appends),
    ("constexpr_kernels", outside::constexpr_kernels),
    ("registered_buffers", outside::registered_buffers),
    ("sharding_cache", outside::sharding_cache),
    ("persistent_readers", outside::persistent_readers),
    ("object_refs", outside::object_refs),
    ("queued_saves", outside::queued_saves),
    ("rollout_history", outside::rollout_history),
];

/// Most that comes at once, where a job would not live to see three of them otherwise.
const PIECE_MAX: f64 = 6e8;
