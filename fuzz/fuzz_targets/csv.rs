#![no_main]

magmap_fuzz::target!("csv");
