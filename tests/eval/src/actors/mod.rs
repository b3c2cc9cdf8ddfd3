//! The parts that programs are made of: a model and its loop, what healthy jobs do besides, what
//! faulty ones do, and what no tuning could look at before it was opened.

pub mod base;
pub mod benign;
mod draws;
pub mod faults;
pub mod fifth;
pub mod fourth;
mod labels;
pub mod opened;
pub mod second;
pub mod sixth;
pub mod third;
