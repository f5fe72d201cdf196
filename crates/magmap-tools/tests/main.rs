//! Tests that share a process: one program is built sooner than a dozen, and keeps all cores busy.

mod axes_check;
mod calibrate;
mod changes;
mod command_line;
mod common;
mod delay;
mod documentation;
mod export;
mod faults;
mod field_choice;
mod frames;
mod live;
mod localizer;
mod locate;
mod maps;
mod merge;
mod npz;
mod reboot;
mod recording;
mod replay;
mod resume;
mod settings;
mod slam;
mod trajectory;
