//! Healthy jobs of the sixth set: all growth ends within the job, or comes and goes.

mod outside;
mod tensors;

use crate::actors::benign::Behaviour;

/// All of them, by name.
pub const HEALTHY: [(&str, Behaviour); 14] = [
    ("validation_pipeline", tensors::validation_pipeline),
    ("cached_latents", tensors::cached_latents),
    ("poisson_batches", tensors::poisson_batches),
    ("inner_loops", tensors::inner_loops),
    ("video_memory", tensors::video_memory),
    ("sparse_gradients", tensors::sparse_gradients),
    ("unsharded_accumulation", tensors::unsharded_accumulation),
    ("rare_long_samples", tensors::rare_long_samples),
    ("resume_copies", outside::resume_copies),
    ("paged_states", outside::paged_states),
    ("shuffle_fill", outside::shuffle_fill),
    ("tokenizer_cache", outside::tokenizer_cache),
    ("plan_cache", outside::plan_cache),
    ("growing_tenant", outside::growing_tenant),
];
