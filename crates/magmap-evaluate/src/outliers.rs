//! Gross outliers among the readings that a map is learnt from: how much a few spoil it.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use magmap::mapping::reading::MagneticField;

/// Which readings are spoilt, and by how much.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outliers {
    /// Share of the readings, 0 to 1.
    pub share: f64,
    /// By how much each of these is too strong, in microtesla; all to one side, so that they do not cancel.
    pub size: f64,
}

/// Readings of a drive, some of them spoilt; the same ones for the same seed.
pub(super) struct Spoiler {
    outliers: Outliers,
    random: ChaCha8Rng,
}

impl Outliers {
    pub(super) fn spoiler(self, seed: u64) -> Spoiler {
        Spoiler { outliers: self, random: ChaCha8Rng::seed_from_u64(seed) }
    }
}

impl Spoiler {
    /// The next reading, with its direction as it was.
    pub fn next(&mut self, field: MagneticField) -> MagneticField {
        let Outliers { share, size } = self.outliers;
        let strength = field.strength();
        if self.random.random::<f64>() < share && strength > 0.0 {
            MagneticField::from_microtesla(field.microtesla() * ((strength + size) / strength))
        } else {
            field
        }
    }
}
