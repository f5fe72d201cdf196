//! The tests of the product that share a process: one program is built sooner than eleven, and keeps all cores busy.

mod arrays;
mod axes_check;
mod calibrate;
mod command_line;
mod common;
mod documentation;
mod export;
mod faults;
mod field_model_robustness;
mod live;
mod locate;
mod maps;
mod recording;
mod replay;
mod resume;
mod robust;
mod settings;
