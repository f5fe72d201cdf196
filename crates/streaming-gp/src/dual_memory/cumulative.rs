//! The cumulative distribution Phi of the standard normal, accurate in both tails.

use super::super::normal::LOG_2_PI;

/// Beyond this many standard deviations the continued fraction of a tail has converged after [`TERMS`] terms.
const TAIL: f64 = 2.0;

/// The error of n terms falls about as exp(-2 z sqrt(n)).
const TERMS: u32 = 100;

/// Phi(x).
pub(super) fn cumulative(x: f64) -> f64 {
    if x <= -TAIL {
        density(x) * tail_ratio(-x)
    } else if x >= TAIL {
        1.0 - density(x) * tail_ratio(x)
    } else {
        // Marsaglia 2004. All terms have the same sign; at x = -2 the half cancels all but a twentieth.
        let (mut term, mut sum) = (x, x);
        for odd in (3..).step_by(2).map(f64::from) {
            term *= x * x / odd;
            sum += term;
            if term.abs() <= f64::EPSILON * sum.abs() {
                break;
            }
        }
        0.5 + density(x) * sum
    }
}

/// log Phi(x).
pub(super) fn log_cumulative(x: f64) -> f64 {
    if x <= -TAIL {
        log_density(x) + tail_ratio(-x).ln()
    } else if x >= TAIL {
        (-density(x) * tail_ratio(x)).ln_1p()
    } else {
        cumulative(x).ln()
    }
}

/// The derivative of log Phi: the density over Phi(x).
pub(super) fn hazard(x: f64) -> f64 {
    if x <= -TAIL { 1.0 / tail_ratio(-x) } else { density(x) / cumulative(x) }
}

fn log_density(x: f64) -> f64 {
    -0.5 * (LOG_2_PI + x * x)
}

fn density(x: f64) -> f64 {
    log_density(x).exp()
}

/// Phi(-z) over the density, for z from [`TAIL`] on: Laplace's continued fraction 1 / (z + 1 / (z + 2 / (z + ...))).
fn tail_ratio(z: f64) -> f64 {
    1.0 / (1..=TERMS).rev().fold(z, |below, n| z + f64::from(n) / below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_has_its_known_values() {
        // Abramowitz and Stegun, table 26.1 and 26.2.
        for (x, expected) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_543),
            (-1.0, 0.158_655_253_931_457),
            (1.96, 0.975_002_104_851_780),
            (-3.0, 0.001_349_898_031_630_095),
            (4.0, 0.999_968_328_758_167),
            (-5.0, 2.866_515_718_791_94e-7),
        ] {
            // The tables have fifteen digits.
            assert!((cumulative(x) / expected - 1.0).abs() < 1e-13, "{x}: {}", cumulative(x));
            assert!((log_cumulative(x) - f64::ln(expected)).abs() < 1e-13, "{x}");
        }
        // log Q(40) of the same book: -349.43701 in decimal logarithms.
        assert!((log_cumulative(-40.0) / std::f64::consts::LN_10 + 349.43701).abs() < 1e-5);
    }

    #[test]
    fn the_pieces_meet_and_the_hazard_is_the_derivative() {
        for x in [-TAIL, TAIL] {
            let (below, above) = (x.next_down(), x.next_up());
            assert!((log_cumulative(below) - log_cumulative(above)).abs() < 1e-13, "{x}");
            assert!((hazard(below) - hazard(above)).abs() < 1e-13, "{x}");
        }
        for x in [-300.0, -7.0, -2.5, -1.0, 0.0, 1.5, 3.0, 6.0] {
            let slope = (log_cumulative(x + 1e-5) - log_cumulative(x - 1e-5)) / 2e-5;
            // Central differences: rounding 1e-16 |log Phi| / 1e-5, truncation 1e-10.
            assert!((hazard(x) - slope).abs() < 1e-8 * (1.0 + 0.1 * x * x), "{x}: {} {slope}", hazard(x));
        }
        assert_eq!((cumulative(50.0), log_cumulative(50.0), hazard(50.0)), (1.0, 0.0, 0.0));
    }
}
