// Looks up random keys of a HashMap, small (fits the second cache) or large.
import java.util.HashMap;

public class HashWalk {
    static long walk(HashMap<Long, Long> map, long keys, int count) {
        long state = 88172645463325252L, sum = 0;
        for (int i = 0; i < count; i++) {
            state ^= state << 13;
            state ^= state >>> 7;
            state ^= state << 17;
            sum += map.get((state >>> 1) % keys);
        }
        return sum;
    }

    public static void main(String[] args) {
        long keys = args[0].equals("small") ? 256 : 3 << 20;
        int count = 20000000;
        HashMap<Long, Long> map = new HashMap<>();
        for (long key = 0; key < keys; key++) {
            map.put(key, key * 3);
        }
        walk(map, keys, 200000);
        long begun = System.nanoTime();
        long sum = walk(map, keys, count);
        double took = (System.nanoTime() - begun) / 1e9;
        System.out.printf("sum %d%nop_ns %.4f%nphase_s %.4f%n", sum, took / count * 1e9, took);
    }
}
