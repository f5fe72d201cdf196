#![no_main]

magmap_fuzz::target!("map");
