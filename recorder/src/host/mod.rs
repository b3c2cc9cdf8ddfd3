//! What the recorder asks of the process it lives in.

pub(crate) mod process;

pub(crate) mod symbols;

pub(crate) mod elf;

pub(crate) mod driver;

pub(crate) mod bus_error;

pub(crate) mod clock;
