// Computes on data that fit the first cache.
public class Compute {
    public static void main(String[] args) {
        int[] sieve = new int[2048];
        long sum = 0;
        for (int round = 0; round < 900000; round++) {
            for (int i = 0; i < sieve.length; i++) {
                sieve[i] = sieve[i] * 31 + (round ^ i);
            }
            sum += sieve[round % sieve.length];
        }
        System.out.println(sum);
    }
}
