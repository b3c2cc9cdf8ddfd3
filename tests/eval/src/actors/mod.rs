//! The parts that programs are made of: a model and its loop, what healthy jobs do besides, and
//! what faulty ones do.

use crate::job::Job;

/// Something that a job does, by its name.
pub type Named = (&'static str, fn(&mut Job));

/// Lists functions with their names.
macro_rules! named {
    ($($name:ident),+ $(,)? $(;)?) => { &[$((stringify!($name), $name)),+] };
}

pub mod base;
pub mod benign;
mod draws;
pub mod faults;

/// Families that were kept apart when they were written, from threads of people who train and
/// without knowledge of the detector or the diagnosis, and were opened afterwards: they may be
/// looked at and tuned on as all the others.
pub mod opened {
    pub mod faulty_caches;
    pub mod faulty_engines;
    pub mod faulty_exchanges;
    pub mod faulty_graphs;
    pub mod faulty_hosts;
    pub mod faulty_inputs;
    pub mod faulty_nodes;
    pub mod faulty_outside;
    pub mod faulty_records;
    pub mod faulty_tensors;
    pub mod faulty_training;
    pub mod healthy_batches;
    pub mod healthy_caches;
    pub mod healthy_engines;
    pub mod healthy_host;
    pub mod healthy_loads;
    pub mod healthy_servers;
    pub mod healthy_stages;
    pub mod healthy_tensors;
    pub mod healthy_training;
}

/// Families that are kept apart. They are not used for tuning, and what is reported about one of
/// their jobs is not read: work on the detector or the diagnosis uses the total alone. A wrong
/// label is corrected here, and `README.md` records it. When something is tuned after their total
/// was read, they are opened, and others are written.
pub mod apart {
    pub mod faulty_devices;
    pub mod faulty_passes;
    pub mod faulty_services;
    pub mod healthy_devices;
    pub mod healthy_processes;
}
