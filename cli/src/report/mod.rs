//! One report to attach to a ticket: a page that a browser shows without any network.
//!
//! `content` is what a page shows. `of_capture` makes it from what the coordinator has, with what
//! `memory` shows of a snapshot; `of_files` makes it from PyTorch's snapshot files. `page` is the
//! HTML. None of them asks a coordinator. The one file that is read is the source of the line that
//! a report names (`source`).

pub(crate) mod chart;
pub(crate) mod content;
pub(crate) mod memory;
pub(crate) mod of_capture;
pub(crate) mod of_files;
pub(crate) mod page;
pub(crate) mod source;

/// Points of one rank in the chart.
pub(crate) const POINTS_MAX: usize = 200;
