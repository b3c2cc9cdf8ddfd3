//! The health check of the node that NVIDIA Resiliency Extension (NVRx) asks for.
//!
//! `ft_launcher` asks before each rendezvous, over a Unix socket; a node that fails does not join.
//! The check is of GPU memory that was not given back: [`gpu_memory`] knows what the GPUs hold and
//! who waits for an answer, [`service`] has the socket and answers for it, [`authority`] what its
//! clients need beside HTTP/2, [`wire`] the messages.
//! Core decides ([`memtape_core::policy::node_check`]). Here no process is ended, no GPU is reset,
//! and the launcher alone acts on an answer.

mod authority;
pub(crate) mod gpu_memory;
pub(crate) mod service;
#[cfg(test)]
mod tests;
mod wire;
