//! What a map is of.

use serde::{Deserialize, Serialize};

/// What the numbers of a map are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The strength of the field, in microtesla.
    #[default]
    Strength,
    /// The probability of a yes, 0 to 1; its standard deviation is that of the probability itself, half at most.
    Probability,
}

impl Quantity {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strength => "field strength",
            Self::Probability => "probability of a yes",
        }
    }

    /// Its ends, where it has some.
    pub fn range(self) -> Option<[f64; 2]> {
        match self {
            Self::Strength => None,
            Self::Probability => Some([0.0, 1.0]),
        }
    }
}
