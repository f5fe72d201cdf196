//! The tests of the engine.

mod dense;
mod golden;
mod inducing;
mod redundancy_and_rejections;
mod robust;
mod streaming_gp;
mod vector_field;
