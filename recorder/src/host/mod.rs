//! The process that the recorder lives in, and the system services that it uses: loaded libraries
//! and symbols, threads and signals, fork and exit, the CUDA driver and the clock. Nothing here
//! knows of the recorder.

pub(crate) mod process;

pub(crate) mod threads;

pub(crate) mod errno;

pub(crate) mod environment;

pub(crate) mod clock;

pub(crate) mod libraries;

pub(crate) mod symbols;

pub(crate) mod elf;

pub(crate) mod driver;

pub(crate) mod bus_error;
