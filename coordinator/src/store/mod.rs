//! The store: journal, catalogue, step records and bodies behind one handle.
//!
//! Picture a notary's office: every deed is first entered in the bound book (the journal, synced),
//! then filed in the cabinet (the catalogue, sled), where one finds things; the long rolls of
//! parchment (bodies) lie in the cellar under the seal they bear (their hash), and the daily
//! ledgers (steps) stand on shelves by date. If the cabinet burns, book and ledgers tell what was
//! in it.
//!
//! One thread writes, in groups: all that waits is synced at once. Nothing here runs on the async
//! loop. Order of writes: body, journal, catalogue, then whoever waits is told. What is told to be
//! durable is synced, steps as well. `docs/store.md` has the files and their formats.

pub(crate) mod blobs;
pub(crate) mod catalogue;
pub(crate) mod disk;
pub(crate) mod error;
pub(crate) mod handle;
pub(crate) mod journal;
pub(crate) mod migration;
pub(crate) mod record;
pub(crate) mod recovery;
pub(crate) mod steps;
#[cfg(any(test, feature = "simulation", feature = "bench"))]
pub(crate) mod testing;
pub(crate) mod writer;

pub(crate) use blobs::local::Blobs;
pub(crate) use blobs::remote::is_bodies_url;
pub(crate) use error::Result;
pub(crate) use handle::Store;
pub(crate) use record::{Changes, Loaded};
