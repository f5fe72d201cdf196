//! What the benches share.

use magmap::gp::points::Points;

/// Points spread evenly over a square (a Weyl sequence), from number `first` on, and a smooth field there.
pub fn readings(first: usize, count: usize, side: f64) -> (Points, Vec<f64>) {
    let mut places = Points::new(2);
    let mut targets = Vec::new();
    for i in first..first + count {
        let x = side * (i as f64 * 0.754_877_666_246_693).fract();
        let y = side * (i as f64 * 0.569_840_290_998_053).fract();
        places.push(&[x, y]);
        targets.push(50.0 + 10.0 * (1.3 * x).sin() * (1.1 * y).cos() + (i as f64 * 7.7).sin());
    }
    (places, targets)
}
