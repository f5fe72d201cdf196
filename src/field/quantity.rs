//! The quantity that is mapped.

use serde::{Deserialize, Serialize};
use streaming_gp::Link;

/// The quantity that is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The strength of the field, in microtesla.
    #[default]
    Strength,
    /// The probability of a yes, 0 to 1; its standard deviation is at most one half.
    Probability,
}

impl Quantity {
    /// Name in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strength => "field strength",
            Self::Probability => "probability of a yes",
        }
    }

    /// The observations that it is mapped from.
    pub(super) fn observed(self) -> &'static str {
        match self {
            Self::Strength => "the field",
            Self::Probability => "a yes/no signal",
        }
    }

    /// Limits of the quantity; none where it is unbounded.
    pub fn range(self) -> Option<[f64; 2]> {
        match self {
            Self::Strength => None,
            Self::Probability => Some([0.0, 1.0]),
        }
    }
}

impl From<Option<Link>> for Quantity {
    /// A probability where there is a link, a strength where there is none.
    fn from(link: Option<Link>) -> Self {
        link.map_or(Self::Strength, |_| Self::Probability)
    }
}
