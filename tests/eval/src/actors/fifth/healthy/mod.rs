//! Healthy jobs of the fifth set: all growth ends within the job, or comes and goes.

mod outside;
mod tensors;

use crate::actors::benign::Behaviour;

/// All of them, by name.
pub const HEALTHY: [(&str, Behaviour); 15] = [
    ("curvature_pairs", tensors::curvature_pairs),
    ("late_experts", tensors::late_experts),
    ("kept_buffers", tensors::kept_buffers),
    ("gathered_logits", tensors::gathered_logits),
    ("emptied_cache", tensors::emptied_cache),
    ("converted_layers", tensors::converted_layers),
    ("side_streams", tensors::side_streams),
    ("picture_pool", tensors::picture_pool),
    ("sample_memory", tensors::sample_memory),
    ("solver_steps", tensors::solver_steps),
    ("critic_first", tensors::critic_first),
    ("replay_fill", outside::replay_fill),
    ("lazy_kernels", outside::lazy_kernels),
    ("store_evictions", outside::store_evictions),
    ("runtime_cache", outside::runtime_cache),
];
