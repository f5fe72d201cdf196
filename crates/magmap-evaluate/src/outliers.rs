//! Gross outliers among the readings that a map is learnt from: how much a few change it.

use clap::Args;
use magmap::sensing::reading::MagneticField;
use magmap_tools::cli::number;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Outliers among the readings: how many, and how far off.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq)]
pub struct Outliers {
    /// Share of the readings that are learnt from, 0 to 1, which become outliers.
    #[arg(long = "outliers", value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub share: f64,
    /// By how much an outlier is too strong, in microtesla; all to one side, so that they do not cancel.
    #[arg(long = "outlier-size", value_name = "UT", default_value_t = 50.0)]
    pub size: f64,
}

fn share(text: &str) -> Result<f64, String> {
    number(text, "a number from 0 to 1", |share| (0.0..=1.0).contains(share))
}

impl Outliers {
    /// Makes outliers of some readings of a drive, one reading after another, and keeps their directions; of the same ones for the same seed.
    pub(super) fn corruption(self, seed: u64) -> impl FnMut(MagneticField) -> MagneticField {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        move |field| {
            let strength = field.strength();
            match random.random::<f64>() < self.share && strength > 0.0 {
                true => MagneticField::from_microtesla(field.microtesla() * ((strength + self.size) / strength)),
                false => field,
            }
        }
    }
}
