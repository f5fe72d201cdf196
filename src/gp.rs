//! The science: a streaming sparse Gaussian process that sizes itself.
//!
//! Nothing in here reads, writes, logs, keeps time or starts threads.

pub mod report;
