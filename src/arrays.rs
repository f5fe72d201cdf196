//! Named arrays of numbers, as the file of a map holds them.

mod problem;

pub use self::problem::Problem;

/// An array of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Name of the array.
    pub name: String,
    /// Length along each index, the last one running fastest; empty for a single number.
    pub shape: Vec<usize>,
    /// The numbers as `f64`, in little-endian order.
    pub bytes: Vec<u8>,
}

/// Arrays of numbers, each with another name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrays(pub Vec<Array>);

impl Arrays {
    /// Adds an array, with as many numbers as its shape says.
    pub fn add(&mut self, name: &str, shape: &[usize], numbers: impl IntoIterator<Item = f64>) {
        let numbers = numbers.into_iter();
        let mut bytes = Vec::with_capacity(size_of::<f64>() * shape.iter().product::<usize>());
        numbers.for_each(|number| bytes.extend(number.to_le_bytes()));
        self.0.push(Array { name: name.to_owned(), shape: shape.to_vec(), bytes });
    }

    /// An array that is one number.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn number(&self, name: &str) -> Result<f64, Problem> {
        Ok(self.numbers(name, [])?[0])
    }

    /// Finite numbers in this shape, in which `None` is any length.
    ///
    /// # Errors
    /// Where the array is missing, has another shape or number of numbers, or one of them is not finite.
    pub fn numbers<const N: usize>(&self, name: &str, shape: [Option<usize>; N]) -> Result<Vec<f64>, Problem> {
        let array = self.0.iter().find(|array| array.name == name);
        let array = array.ok_or_else(|| Problem::array(name, "numbers", "none"))?;
        let fits = array.shape.len() == N
            && shape.iter().zip(&array.shape).all(|(expected, found)| expected.is_none_or(|length| length == *found));
        let (numbers, rest) = array.bytes.as_chunks::<{ size_of::<f64>() }>();
        let count = array.shape.iter().try_fold(1_usize, |product, &length| product.checked_mul(length));
        if !fits || !rest.is_empty() || count != Some(numbers.len()) {
            let expected: Vec<_> = shape.iter().map(|length| length.map_or("any".into(), |n| n.to_string())).collect();
            let found = format!("{:?} in {} bytes", array.shape, array.bytes.len());
            return Err(Problem::array(name, &format!("numbers of shape [{}]", expected.join(", ")), found));
        }
        let numbers: Vec<f64> = numbers.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect();
        match numbers.iter().find(|number| !number.is_finite()) {
            Some(number) => Err(Problem::array(name, "finite numbers", number)),
            None => Ok(numbers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_read_only_in_the_expected_shape_and_with_finite_numbers() {
        let mut arrays = Arrays::default();
        arrays.add("matrix", &[2, 3], (0..6).map(f64::from));
        arrays.add("number", &[], [-0.0]);
        arrays.add("infinite", &[1], [f64::INFINITY]);
        assert_eq!(arrays.numbers("matrix", [None, Some(3)]).unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!(arrays.number("number").unwrap().is_sign_negative());
        let problem = |name: &str, shape| arrays.numbers::<2>(name, shape).unwrap_err().to_string();
        assert!(problem("matrix", [Some(3), None]).contains("expected numbers of shape [3, any] in the array matrix"));
        assert!(problem("number", [None, None]).contains("found [] in 8 bytes"));
        assert!(problem("other", [None, None]).contains("expected numbers in the array other, found none"));
        assert!(arrays.numbers("infinite", [None]).unwrap_err().to_string().contains("found inf"));
        // More numbers than can be counted, and fewer in the array than it says.
        arrays.0[0].shape = vec![1 << 62, 8];
        assert!(arrays.numbers("matrix", [None, None]).is_err());
        arrays.0[0].shape = vec![2, 4];
        assert!(arrays.numbers("matrix", [None, None]).is_err());
    }
}
